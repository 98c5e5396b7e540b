"""Drawings of the course: figures, schematic pictures, tables, and HTML that escapes."""
