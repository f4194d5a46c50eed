"""The scikit-learn estimator. Users import it as `recollect.sklearn`."""
