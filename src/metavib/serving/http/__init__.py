"""The HTTP server of `metavib serve`."""
