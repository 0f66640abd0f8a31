"""The loaded model and the options."""

sd_model = None


class OptionInfo:
    def __init__(self, default, label):
        self.default, self.label, self.section = default, label, None

    def info(self, text):
        self.label += f" ({text})"
        return self


def options_section(section, options):
    for option in options.values():
        option.section = section
    return options


class Options:
    lora_functional = False
    lora_add_hashes_to_infotext = True
    use_old_scheduling = False
    uni_pc_skip_type = "time_uniform"

    def __init__(self):
        self.data = {}


opts = Options()
options_templates = {}
