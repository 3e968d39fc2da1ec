"""What writes or serves files and results instead of answering a question about them."""
