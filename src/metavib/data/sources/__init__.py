"""Where images come from: folders, manifests and the datasets known by name."""
