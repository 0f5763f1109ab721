"""Topics of Kafka as sources of rows."""
