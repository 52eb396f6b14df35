"""Click-through rates of the ad events of `ads`."""
