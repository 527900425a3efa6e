package cli

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
)

func TestDescribeTakesNodesAndJobs(t *testing.T) {
	for args, want := range map[string]string{
		"gpu-17":           " gpu-17 false <nil>",
		"jobset/train":     "jobset train true <nil>",
		"jobs.batch train": "jobs.batch train true <nil>",
		"node/gpu-17":      " gpu-17 false <nil>",
		"node gpu-17":      " gpu-17 false <nil>",
		"jobset/":          "  true a job is named as KIND/NAME or KIND NAME, as in jobset/train",
		"/train":           "  true a job is named as KIND/NAME or KIND NAME, as in jobset/train",
		"ml/jobset/train":  "  true a job is named as KIND/NAME or KIND NAME, as in jobset/train",
	} {
		resource, name, isJob, err := JobArgument(strings.Fields(args))
		if got := fmt.Sprintln(resource, name, isJob, err); got != want+"\n" {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
}

func TestAKindIsNamedAsForKubectl(t *testing.T) {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, k := range GvksOf(kinds.BuiltIn()) {
		mapper.Add(k, meta.RESTScopeNamespace)
	}
	for resource, want := range map[string]string{
		"jobset": "JobSet", "jobsets": "JobSet", "JobSet": "JobSet", "jobset.jobset.x-k8s.io": "JobSet", "pytorchjob": "PyTorchJob",
		"jobs.batch": "Job", "job.v1.batch": "Job", "rayjob.ray.io": "RayJob", "jobs.batch.volcano.sh": "Job", "statefulset": "StatefulSet",
	} {
		if got, err := kindOf(mapper, resource); err != nil || got.Kind != want {
			t.Errorf("%s: %v, %v, want %s", resource, got, err, want)
		}
	}
}
