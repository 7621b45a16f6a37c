"""The paper, figure by figure: every finding is a study, a picture and a verdict."""
