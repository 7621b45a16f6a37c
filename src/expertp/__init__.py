"""ExpertP: tune a small Mixture-of-Experts language model, train a large one."""
