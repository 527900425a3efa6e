package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
)

// fileFlags are the flags for reports in files of the host, which are at the same place for kcover and for this program.
func (o *options) fileFlags(f *flags.Set) {
	f.StringVar(&o.out, "out", "", "write the report to `folder`/<namespace>/<workload>-<rank>.json, as kcover does")
	f.StringVar(&o.send, "send", "", "test nothing: write the report that kcover's container has left in `folder` to a ConfigMap")
	f.StringVar(&o.runID, "run", "",
		"with -send, the `id` of the run, one for all ranks, new for each run (default: the UID of the pod's owner)")
}

// forSend sets what -send needs of the group: the rank, and nothing of the others.
func (o *options) forSend(rank string) (err error) {
	if o.group.rank, err = strconv.Atoi(rank); err != nil || o.group.rank < 0 {
		return fmt.Errorf("-rank %q is not a number from 0", rank)
	}
	return nil
}

// path is the file of this rank's report below a folder.
func (o options) path() string {
	return filepath.Join(o.env("POD_NAMESPACE"), fmt.Sprintf("%s-%d.json", o.env("WORKLOAD"), o.group.rank))
}

// sendReport writes the report of kcover's container, which has ended, to a ConfigMap. It refuses one of another node, rank or run, and
// one that is older than this pod: the file of the attempt before has the same name.
func sendReport(ctx context.Context, o options) error {
	cluster, err := o.connect()
	if err != nil {
		return fmt.Errorf("send the report: %w", err)
	}
	namespace, name := o.env("POD_NAMESPACE"), o.env("POD_NAME")
	pod, err := cluster.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get this pod: %w", err)
	}
	r, err := o.left(pod)
	if err != nil {
		return fmt.Errorf("the report %s below %s: %w", o.path(), o.send, err)
	}
	return writeConfigMap(ctx, cluster, namespace, name, r)
}

// left is the report in the file of this rank.
func (o options) left(pod *corev1.Pod) (r report.Report, err error) {
	// Other pods write below the folder, too: no link leads out of it.
	file, err := os.OpenInRoot(o.send, o.path())
	if errors.Is(err, fs.ErrNotExist) {
		return r, errors.New("it is not there; this container must run after kcover's, with the same folder")
	}
	if err != nil {
		return r, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return r, err
	}
	if !info.Mode().IsRegular() {
		return r, errors.New("it is not a file")
	}
	// The kubelet has set it, by the clock that is also that of the file.
	if start := pod.Status.StartTime; start == nil || info.ModTime().Before(start.Truncate(time.Second)) {
		return r, fmt.Errorf("it is of %s, older than this pod", info.ModTime().UTC().Format(time.RFC3339))
	}
	// kcover's form is larger than the one that is written.
	data, err := io.ReadAll(io.LimitReader(file, 16*report.MaxBytes))
	if err != nil {
		return r, err
	}
	if r, err = report.Parse(data); err != nil {
		return r, err
	}
	id := o.runID
	if owner := metav1.GetControllerOf(pod); id == "" && owner != nil {
		id = string(owner.UID)
	}
	switch {
	case r.Node != o.node:
		return r, fmt.Errorf("it is of node %.100q, this pod is on %s", r.Node, o.node)
	case r.Rank != o.group.rank:
		return r, fmt.Errorf("it is of rank %d, this is %d", r.Rank, o.group.rank)
	case r.RunID != "" && r.RunID != id:
		return r, fmt.Errorf("it is of run %.100q, this is %s", r.RunID, id)
	}
	r.RunID, r.Workload = id, o.env("WORKLOAD")
	slog.Info("Read the report", "path", o.path(), "batches", len(r.Batches))
	return r, nil
}
