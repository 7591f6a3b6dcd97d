"""The pipeline's door: a Spark data source that reads and writes the log in Arrow batches."""
