"""What runs inside or beside a measured job: injection, hooks, sampling."""
