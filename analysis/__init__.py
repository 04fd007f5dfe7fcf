"""Parquet in; numbers, verdicts, the knee and the report out."""
