"""What a library of ops is packed into."""
