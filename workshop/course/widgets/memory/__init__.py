"""What fills the memory of each GPU, with sliders."""
