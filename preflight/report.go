package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
)

// writeReport writes the report to a file of the host or to a ConfigMap. POD_NAMESPACE, POD_NAME and WORKLOAD are set in the
// pod's template.
func writeReport(ctx context.Context, o options, r report.Report) error {
	namespace := o.env("POD_NAMESPACE")
	r.Workload = o.env("WORKLOAD")
	if o.out != "" {
		return writeFile(o.out, namespace, r)
	}
	cluster, err := o.connect()
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return writeConfigMap(ctx, cluster, namespace, o.env("POD_NAME"), r)
}

func writeConfigMap(ctx context.Context, cluster kubernetes.Interface, namespace, name string, r report.Report) error {
	pod, err := cluster.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get this pod: %w", err)
	}
	cm, err := reportconfigmap.New(pod, r)
	if err != nil {
		return err
	}
	// The name follows from the run and the pod, so an existing ConfigMap is this report, written before a restart.
	_, err = cluster.CoreV1().ConfigMaps(namespace).Create(ctx, cm, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create ConfigMap %s/%s: %w", namespace, cm.Name, err)
	}
	slog.Info("Wrote the report", "configMap", cm.Name, "run", r.RunID)
	return nil
}

func writeFile(folder, namespace string, r report.Report) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	path := filepath.Join(folder, namespace, fmt.Sprintf("%s-%d.json", r.Workload, r.Rank))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	// The rename is atomic: a reader never gets a partial file.
	if err := os.WriteFile(path+".new", data, 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	slog.Info("Wrote the report", "path", path, "run", r.RunID)
	return nil
}
