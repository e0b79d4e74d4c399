"""The client's parts: an open store that callers share, checked requests, handles, views, ways to work."""
