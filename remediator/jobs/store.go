package jobs

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/report"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// store writes the records of restarts.
type store struct {
	client   client.Client
	reporter *report.Reporter
	memory   *memory
}

// write patches the job's record and label. A conflict is returned as such.
func (s *store) write(ctx context.Context, job restart.Job, rec restart.Record) error {
	return s.writeWith(ctx, job, rec, restart.SuspendField{})
}

// writeAndSuspend does the same and sets the job's own suspend field as the record's phase needs it.
func (s *store) writeAndSuspend(ctx context.Context, job restart.Job, rec restart.Record) error {
	return s.writeWith(ctx, job, rec, job.SuspendField)
}

func (s *store) writeWith(ctx context.Context, job restart.Job, rec restart.Record, field restart.SuspendField) error {
	data, err := rec.Patch(job.Object, field)
	if err != nil {
		return err
	}
	if err := s.patch(ctx, job, data); err != nil {
		return err
	}
	var written *underWay
	if rec.Current != nil {
		written = &underWay{job.Object.GetUID(), rec.Current.Summary()}
	}
	s.memory.wrote(requestOf(job), written)
	return nil
}

// forget drops what is kept about a job that is no longer under restart.
func (s *store) forget(req request) {
	s.reporter.NotHeld(req)
	s.memory.forget(req)
}

// dropLabel drops the label of a job whose record shows no restart: another writer removed or broke the record, it was copied from
// another job, or it is too large. Whether the job should run is no longer known. why is the error of the record, if it has one.
func (s *store) dropLabel(ctx context.Context, job restart.Job, why error) error {
	if _, labelled := job.Object.GetLabels()[conditions.LabelRestarting]; !labelled {
		return nil
	}
	unlabel := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q,"labels":{%q:null}}}`,
		job.Object.GetResourceVersion(), conditions.LabelRestarting)
	if err := s.patch(ctx, job, unlabel); err != nil {
		return err
	}
	s.reporter.RecordLost(job, why)
	return nil
}

func (s *store) patch(ctx context.Context, job restart.Job, data []byte) error {
	// Metadata is all that is needed back.
	target := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: job.Object.GetNamespace(), Name: job.Object.GetName()}}
	target.SetGroupVersionKind(job.GVK)
	if err := s.client.Patch(ctx, target, client.RawPatch(types.MergePatchType, data)); err != nil {
		return fmt.Errorf("patch %s %s: %w", job.GVK.Kind, job.Key(), err)
	}
	return nil
}
