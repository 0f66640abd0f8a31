"""The UNet of another program that takes the place of the model's."""

current_unet = None


def apply_unet(option=None):
    global current_unet
    if option == "None":
        current_unet = None
