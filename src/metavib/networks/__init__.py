"""Networks: the backbones, their pre-trained weights, and what stands on top of their features."""
