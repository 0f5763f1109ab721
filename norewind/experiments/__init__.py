"""The paper's experiments: runs, records, figures, table and page."""
