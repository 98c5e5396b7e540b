"""Limit what one request of a learner may ask for: its body, its size, its forms, its pace."""
