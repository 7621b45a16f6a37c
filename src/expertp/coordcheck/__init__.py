"""The coordinate check: do activations, and what training adds to them, keep their size along every axis?"""
