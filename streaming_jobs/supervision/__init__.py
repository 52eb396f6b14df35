"""Jobs started, watched, healed and stopped.

jobs          names of jobs, and their modules
desired       the desired state of a job, and its history
healing       decisions about it: pure functions
control_loop  brings it to its desired state, one look at a time
supervisor    starts, stops and looks at processes
standby       the next process, which comes up while the present one runs
foreground    a job in the process of the command
scheduled     pipelines without a process between two runs
lease         one process runs a pipeline
holders       that process, and the wait of any other
job_logs      its output
rescaling     it goes on with more or fewer resources
exchange      a table and the version beside it change places under it
"""
