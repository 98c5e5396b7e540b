"""Facts that several notebooks and pages show: recorded measurements, and a manifest with mistakes."""
