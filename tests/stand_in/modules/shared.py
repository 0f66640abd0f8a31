"""The loaded model and the options."""

sd_model = None


class OptionInfo:
    def __init__(self, default, label, section=None):
        self.default, self.label, self.section = default, label, section

    def info(self, text):
        self.label += f" ({text})"
        return self


class Options:
    lora_functional = False
    lora_add_hashes_to_infotext = True
    use_old_scheduling = False
    uni_pc_skip_type = "time_uniform"

    def __init__(self):
        self.data = {}

    def add_option(self, name, option):
        self.data[name] = option.default


opts = Options()
