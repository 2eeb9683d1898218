"""A run as files: tables, TensorBoard's events, MLflow's file store."""
