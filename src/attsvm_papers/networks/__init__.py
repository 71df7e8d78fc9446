"""Networks trained on real data: what several figures share."""
