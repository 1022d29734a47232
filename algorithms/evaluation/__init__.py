"""What a policy is worth, and whether values can be believed."""
