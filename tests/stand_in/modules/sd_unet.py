"""The UNet of another program that takes the place of the model's."""

current_unet = None
