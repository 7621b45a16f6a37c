"""Solve the mean-field limit of an MoE, and compare its loss with that of finite networks of two sizes."""

from expertp.theory import Problem, Size, simulate, solve

problem = Problem(P=10, T=13)  # 10 data, 13 steps of gradient descent; two MoE layers with soft gates
limit = solve(problem)
small = simulate(problem, Size(N=16, E=8, n_hid=8))
large = simulate(problem, Size(N=128, E=32, n_hid=32))

print("step   limit   N = 16  N = 128")
for step in range(0, problem.T, 4):
    print(f"{step:4d}" + "".join(f"{run.losses_each.mean(0)[step]:9.4f}" for run in (limit, small, large)))
print(f"Monte-Carlo error of the limit: {limit.mc_error:.3%}")
