"""Image-classification tasks: data sets (`meta_tasks.datasets`) and networks (`meta_tasks.networks.architectures`)."""
