"""Records written to topics: at least once, through confluent-kafka where it is there and the brokers are not older
than 0.10, else through kafka-python.
"""
