package main

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"
)

// ordinary are made-up lines in the form that training jobs write: progress, NCCL's messages, a server's JSON, a traceback. %d
// and %f get numbers.
var ordinary = []string{
	"step %d/500000 | loss %f | grad_norm %f | lr 1.5e-04 | tokens/s %d | mfu %f | mem 71.2 GiB",
	"[2026-11-20 14:00:00,%d] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd: %f | bwd: %f | step: %f",
	"train-worker-%d:412:1907 [%d] NCCL INFO Channel 02/0 : 3[3] -> 11[3] [send] via NET/IB/4/GDRDMA",
	"train-worker-%d:412:1907 [%d] NCCL INFO Connected all rings, %d coll channels, 16 p2p channels",
	`{"level":"info","ts":%f,"caller":"server/handler.go:88","msg":"request served","status":200,"ms":%d,"path":"/v1/completions"}`,
	"  %d%%|###########6     | 3391/8000 [1:12:44<1:38:12, %f s/it, loss=%f]",
	"WARNING: dataloader worker %d is slow: %f s for batch %d, prefetch factor 2",
	`  File "/opt/train/loop.py", line %d, in step`,
	"    loss = model(batch)  # GPU %d of 8, error feedback on, remote store closed by the trainer",
	"I%d 14:00:00.104512 412 checkpoint.py:77] saved shard %d of 64 to the object store in %f s",
	"",
}

// faulty are lines of which each matches one of the plugin's patterns.
var faulty = []string{
	"RuntimeError: CUDA error: uncorrectable ECC error encountered",
	"[538441.007373] NVRM: Xid (PCI:0000:4e:00): 79, pid=%d, name=python3, GPU has fallen off its bus.",
	"train-worker-1:412:1907 [%d] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.7<55912>",
	"[rank%d]:[E ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=64214)",
	"RuntimeError: CUDA error: invalid device ordinal",
	"train-worker-1:412:1907 [%d] transport/net_ib.cc:2453 NCCL WARN NET/IB: Got completion from peer 10.0.0.7<51161> with status=12",
}

// writeLog writes a log of size bytes in the CRI's form in which one line of ten thousand is a faulty one. It returns how
// many those are. The numbers in it are the same in every run.
func writeLog(path string, size int64) (matching int, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return 0, err
	}
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, 1<<20)
	random := rand.New(rand.NewPCG(1, 2))
	// The log is of this hour, because the plugin skips lines that are older than the boot.
	at := time.Now().UTC()
	for written, lines := int64(0), 1; written < size; lines++ {
		text := ordinary[random.IntN(len(ordinary))]
		if lines%10_000 == 0 {
			text = faulty[random.IntN(len(faulty))]
			matching++
		}
		at = at.Add(time.Microsecond * time.Duration(random.IntN(2000)))
		n, err := fmt.Fprintf(w, "%s stdout F %s\n", at.Format("2006-01-02T15:04:05.000000000Z07:00"), fill(random, text))
		if err != nil {
			return 0, err
		}
		written += int64(n)
	}
	return matching, w.Flush()
}

// fill replaces the verbs of a template by numbers.
func fill(random *rand.Rand, template string) string {
	var numbers []any
	for i := 0; i+1 < len(template); i++ {
		if template[i] != '%' {
			continue
		}
		i++
		switch template[i] {
		case 'd':
			numbers = append(numbers, random.IntN(100_000))
		case 'f':
			numbers = append(numbers, random.Float64()*100)
		}
	}
	return fmt.Sprintf(template, numbers...)
}
