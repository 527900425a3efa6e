package chart_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// The values of docs/migrate.md deploy every condition of ModelArts' node agent, and mount the kubelet's socket where ModelArts has it.
func TestTheChartDeploysTheConditionsOfModelArts(t *testing.T) {
	objects := mustRender(t, "pools: [{name: npu, preset: modelarts, checks: {NT_NPU_CARD_LOSE: {args: {count: 8}}}}]")
	monitors := find[corev1.ConfigMap](t, objects, "ConfigMap", "pitcrew-npd-npu").Data
	sources, err := filepath.Glob("../../monitors/modelarts/*.json")
	if err != nil || len(sources) != 7 || len(monitors) != 7 {
		t.Fatalf("%d monitors of %q, %v", len(monitors), sources, err)
	}
	for _, source := range sources {
		condition := strings.TrimSuffix(filepath.Base(source), ".json")
		if !strings.Contains(monitors[condition+".json"], `"reason": "os_task_name:`) {
			t.Errorf("%s: %s", condition, monitors[condition+".json"])
		}
	}
	for _, want := range []string{`"-pod-resources=/host/pod-resources/kubelet.sock"`, `"-count=8"`, `"card"`} {
		if !strings.Contains(monitors["NT_NPU_CARD_LOSE.json"], want) {
			t.Errorf("NT_NPU_CARD_LOSE has no %s", want)
		}
	}
	pod := find[appsv1.DaemonSet](t, objects, "DaemonSet", "pitcrew-npd-npu").Spec.Template.Spec
	if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool {
		return v.HostPath != nil && v.HostPath.Path == "/mnt/paas/kubernetes/kubelet/pod-resources"
	}) {
		t.Errorf("volumes %v", pod.Volumes)
	}
	// The remediator prefers nodes without accelerators.
	found := false
	for _, term := range find[appsv1.Deployment](t, objects, "Deployment", "pitcrew-remediator").Spec.Template.Spec.Affinity.NodeAffinity.
		PreferredDuringSchedulingIgnoredDuringExecution {
		for _, e := range term.Preference.MatchExpressions {
			found = found || e.Key == "accelerator/huawei-npu" && e.Operator == corev1.NodeSelectorOpDoesNotExist
		}
	}
	if !found {
		t.Error("nothing keeps the remediator from nodes with NPUs")
	}
}
