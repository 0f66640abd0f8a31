"""What stays on the device under lowvram."""

module_in_gpu = None


def send_everything_to_cpu():
    global module_in_gpu
    module_in_gpu = None
