"""The plan's parameter groups with an optimizer and a scheduler of your own choice, and the expert biases by hand."""

import torch

from expertp import BaseHPs, ModelSpec, MoETransformer, bias_update, init_parameters, param_groups, plan

base = ModelSpec(n_embd=64, d_head=32, n_layer=2, n_exp=4, n_act=1, vocab_size=256, context=32)
target = base.replace(n_embd=128, n_exp=8, n_act=2)
hps = BaseHPs(lr=0.01, init_std=0.05, bias_lr=0.05)
the_plan = plan(base, target, hps)

model = MoETransformer(target, the_plan.forward)
init_parameters(model, the_plan, seed=0)
optimizer = torch.optim.NAdam(param_groups(model, the_plan))
# A factor on each group's own rate keeps the plan; a scheduler that writes one rate into all groups would destroy it.
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))

tokens = torch.randint(0, 256, (8, 33), generator=torch.Generator().manual_seed(0))
for step in range(20):
    out = model(tokens[:, :-1], tokens[:, 1:])
    out.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    model.shift_biases(bias_update(out.load_LE, target.n_act, hps.bias_lr, "proportional"))
    if step % 5 == 0:
        print(f"step {step:2} loss {out.loss.item():.3f} loads {out.load_LE[0].tolist()}")
