"""Jobs started, watched, healed and stopped."""
