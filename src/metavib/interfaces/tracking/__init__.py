"""Trackers: the dashboards that users have already, told of what a run logs and measures."""
