"""What a controller reports about itself: events, metrics, probes, logs; and the signals it obeys."""
