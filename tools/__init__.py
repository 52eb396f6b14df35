"""Tools for whoever changes the package; they are not installed with it.

java_classes      the jar of `lakehouse/runtime/java`
jar_sums          the sums of the jars that `ivy.xml` names
record_classes    the archives of Spark's and Kafka's classes
tour_recording    the recording of the tour, an animation
expectation_stub  the expectations of Great Expectations, written down for `declare`
"""
