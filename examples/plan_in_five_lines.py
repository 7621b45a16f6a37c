from expertp import BaseHPs, ModelSpec, plan

base = ModelSpec(n_embd=512, n_layer=8, n_exp=4, n_act=1)
target = ModelSpec(n_embd=2880, n_layer=8, n_exp=16, n_act=4)
for name, group in plan(base, target, BaseHPs(lr=0.016, init_std=0.02)).groups.items():
    print(f"{name:12} init_std {group.init_std}  lr {group.lr}  adam_eps {group.adam_eps}")
