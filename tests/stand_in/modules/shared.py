"""The loaded model and the options."""

from types import SimpleNamespace

sd_model = None
device = "cpu"
state = SimpleNamespace(job_count=0)
cmd_opts = SimpleNamespace(
    lowvram=False,
    medvram=False,
    medvram_sdxl=False,
    precision="autocast",
    upcast_sampling=False,
    no_half=False,
    no_half_vae=False,
    lora_dir=None,
    skip_load_model_at_start=False,
    disable_extension_access=False,
    api=False,
)


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
    hires_fix_use_firstpass_conds = False
    extra_networks_default_multiplier = 1.0
    lora_not_found_warning_console = False
    uni_pc_skip_type = "time_uniform"

    def __init__(self):
        self.data = {"sd_lora": "None"}


opts = Options()
options_templates = {}
