package report

import (
	"encoding/json"
	"net/netip"
	"strconv"
)

var statusNames = [...]string{OK: "ok", Fail: "fail", Skip: "skip"}

// MarshalJSON writes the report in kcover's format with our additional fields. Both [Parse] and kcover's own parser can
// read it.
func (r Report) MarshalJSON() ([]byte, error) {
	type batch struct {
		Schema    string       `json:"schema"`
		Phase     string       `json:"phase"`
		Index     int          `json:"batch_idx"`
		Pair      []netip.Addr `json:"pair"`
		Self      netip.Addr   `json:"self_ip"`
		Status    string       `json:"status"`
		Bandwidth float64      `json:"busbw_gbps,omitempty"`
	}
	out := struct {
		Version   int                `json:"version"`
		RunID     string             `json:"run_id,omitempty"`
		Workload  string             `json:"workload,omitempty"`
		Size      int                `json:"workload_size"`
		Rank      int                `json:"rank"`
		Node      string             `json:"node_name"`
		IP        netip.Addr         `json:"node_ip,omitzero"`
		Storage   Check              `json:"storage_check"`
		GPU       Check              `json:"gpu_check"`
		Threshold string             `json:"node_check_busbw_threshold_gbps,omitempty"`
		Figures   map[string]float64 `json:"figures,omitempty"`
		Batches   []batch            `json:"batches"`
	}{1, r.RunID, r.Workload, r.Size, r.Rank, r.Node, r.IP, r.Storage, r.GPU, "", r.Figures, []batch{}}
	if r.Threshold > 0 {
		out.Threshold = strconv.FormatFloat(r.Threshold, 'g', -1, 64)
	}
	for _, b := range r.Batches {
		out.Batches = append(out.Batches, batch{"v3", "pairwise", b.Index, b.Pair[:], b.Self, statusNames[b.Status], b.Bandwidth})
	}
	return json.Marshal(out)
}
