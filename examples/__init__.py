"""More pipelines, which a checkout has: the tables of each, and the producer that fills its topics.

alerts    alerts on the readings of `lakehouse.examples.sensors`, whose topic it reads
clicks    click-through rates of `lakehouse.examples.ads`, whose topic it reads
visits    the access log of a web site: visitors, sessions, pages
patterns  patterns with repetition over logins and trades, which you send
bank      transfers between accounts, and balances
fraud     alerts on the transfers; its topics are those of `bank`
shop      products, and which of them are viewed together
network   the quality of radio cells, and addresses that try to break in
"""
