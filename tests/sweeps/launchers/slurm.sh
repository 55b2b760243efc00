#!/usr/bin/env bash
# A real Slurm with one node, this machine, for tests and for trying hydra/launcher=slurm:
#
#   tests/sweeps/launchers/slurm.sh start FOLDER    starts it and waits for its node; then: export SLURM_CONF=FOLDER/slurm.conf
#   tests/sweeps/launchers/slurm.sh stop FOLDER
#
# Needs the packages slurmctld, slurmd, slurm-client and munge (apt-get install), and no service manager, no cgroups, no
# database: all it has lies in FOLDER, whose path must be short (a socket's is at most 107 letters).
# Jobs in partition urgent preempt those in low and graceful, which are queued again; in graceful they first have 60 s.
set -euo pipefail

start() {
    mkdir -p "$1"/{state,spool,log} && chmod 755 "$1"
    folder=$(cd "$1" && pwd)
    host=$(hostname -s)
    me=$(id -un)
    read -r port_a port_b < <(python3 - <<'PYTHON'
import socket
probes = [socket.socket() for _ in range(2)]
for probe in probes:
    probe.bind(("", 0))
print(*(probe.getsockname()[1] for probe in probes))
PYTHON
    )
    # Four processors, whatever there are: jobs may run side by side on a small machine. A job that is queued again waits
    # until its old credential has expired, which is two minutes otherwise.
    cat >"$folder/slurm.conf" <<CONF
ClusterName=here
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port_a
SlurmdPort=$port_b
SlurmUser=$me
SlurmdUser=$me
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldLogFile=$folder/log/slurmctld
SlurmdLogFile=$folder/log/slurmd
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=5,bf_interval=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=30
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 RealMemory=100000 State=UNKNOWN
PartitionName=low Nodes=$host Default=YES MaxTime=INFINITE PriorityTier=1
PartitionName=graceful Nodes=$host MaxTime=INFINITE PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=$host MaxTime=INFINITE PriorityTier=2
CONF
    [[ $(slurmd -V) < "slurm-wlm 23.11" ]] || echo CgroupPlugin=disabled >"$folder/cgroup.conf"

    head -c 1024 /dev/urandom >"$folder/munge.key" && chmod 600 "$folder/munge.key"
    munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
        --log-file="$folder/log/munged" --seed-file="$folder/munge.seed" 2>"$folder/log/munged.start"
    export SLURM_CONF=$folder/slurm.conf
    slurmctld
    slurmd
    for _ in {1..100}; do
        [[ $(sinfo --noheader --format=%t 2>/dev/null | sort -u) == idle ]] && return
        sleep 0.1
    done
    echo "Slurm did not start:" >&2
    tail -n 20 "$folder"/log/* >&2
    stop "$folder"
    exit 1
}

stop() {
    export SLURM_CONF=$1/slurm.conf
    scancel --user="$(id -un)" 2>/dev/null || true
    while [[ -n $(squeue --noheader 2>/dev/null) ]]; do sleep 0.1; done
    for name in slurmd slurmctld munged; do
        if pid=$(cat "$1/$name.pid" 2>/dev/null); then
            kill "$pid" 2>/dev/null || true
            while [[ $(ps -o stat= -p "$pid") == [^Z]* ]]; do sleep 0.05; done
        fi
    done
}

case ${1-} in
start | stop) "$1" "${2:?a folder}" ;;
*) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
