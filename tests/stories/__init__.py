"""Random stories: what may happen to a stream, played for real, and what must hold in the end.

story           what happens: events, how they are cut, what is late, where everything crashes
suites          the tables that stories are told about, and what must hold of each
sources         the tables that read other sources than topics of JSON
filling         a stage that fills these sources, and what must be read of them
lots            how a lot of clicks is put into each kind of source
others          the same of tables of others that grow, or whose rows are changed
machine         stream, batch runs, late rows, repairs, hands and kills in any order
tally           what did occur, counted on what was stored
hostile         messages of which half are hostile, and what is right of each: JSON, JSON Schema, CSV, text
hostile_events  the same of Avro, Protobuf and changes of a database
hostile_tables  the tables that they are sent to, and whether each is in one place
work            a piece of the telling of many, in a warm process
__main__        as many as one likes: `make stories COUNT=500`
"""
