"""Everything that runs inside a Locust process, and the row that a request becomes."""
