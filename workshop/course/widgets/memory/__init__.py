"""Show what fills the memory of each GPU, with sliders."""
