// Package preflight shows the reports of a preflight run and what they say about nodes.
package preflight

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/view"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
)

var errNoReport = errors.New("there is no report")

// namedReport is the text of a report and where it comes from.
type namedReport struct {
	name string
	data []byte
	// written is when it was written.
	written time.Time
}

func Command(c *cli.Target) *cobra.Command {
	var folder, namespace, topology, label, output string
	cmd := &cobra.Command{
		Use:   "preflight [RUN]",
		Short: "Show what a preflight run measured, pair by pair, and which nodes are slow",
		Long: "Show what a preflight run measured, pair by pair, and which nodes are slow.\n\n" +
			"It judges the reports as they are, but for those that the remediator has refused: whether each comes from the\n" +
			"pod that it names, only the remediator checks.",
		Example: "  kubectl pitcrew preflight 5d41402abc4b2a76\n  kubectl pitcrew preflight -f reports/ --topology racks.txt -o html >run.html",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (folder == "") == (len(args) == 0) {
				return errors.New("name a run, or a folder of reports with -f")
			}
			var r view.Run
			var err error
			if folder != "" {
				r, err = offlineRun(cmd.ErrOrStderr(), folder, topology)
			} else {
				r, err = clusterRun(cmd.Context(), c, cmd.ErrOrStderr(), namespace, args[0], label)
			}
			if err != nil {
				return err
			}
			switch output {
			case "text":
				return view.Text(cmd.OutOrStdout(), r)
			case "html":
				return view.HTML(cmd.OutOrStdout(), r)
			case "json":
				return json.NewEncoder(cmd.OutOrStdout()).Encode(r.Verdict)
			}
			return fmt.Errorf("-o %s is not text, html or json", output)
		},
	}
	cmd.Flags().StringVarP(&folder, "filename", "f", "", "`folder` of report files, instead of a cluster")
	cmd.Flags().StringVar(&namespace, "reports-namespace", "", "`namespace` of the run's job; all of them by default")
	cmd.Flags().StringVar(&topology, "topology", "", "`file` with a node and its rack or leaf switch on each line, for -f")
	cmd.Flags().StringVar(&label, "topology-label", "topology.kubernetes.io/rack", "node `label` that names the rack or leaf switch")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, html or json")
	return cmd
}

// offlineRun judges the *.json files of a folder.
func offlineRun(warn io.Writer, folder, topology string) (view.Run, error) {
	var leaf map[string]string
	if topology != "" {
		text, err := os.ReadFile(topology)
		if err != nil {
			return view.Run{}, fmt.Errorf("read the topology: %w", err)
		}
		if leaf, err = view.ParseTopology(string(text)); err != nil {
			return view.Run{}, fmt.Errorf("topology %s: %w", topology, err)
		}
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return view.Run{}, fmt.Errorf("list the reports: %w", err)
	}
	var files []namedReport
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".json" {
			continue
		}
		path := filepath.Join(folder, e.Name())
		data, err := os.ReadFile(path)
		if err != nil {
			return view.Run{}, fmt.Errorf("read a report: %w", err)
		}
		info, err := os.Stat(path)
		if err != nil {
			return view.Run{}, fmt.Errorf("read a report: %w", err)
		}
		files = append(files, namedReport{path, data, info.ModTime()})
	}
	if len(files) == 0 {
		return view.Run{}, fmt.Errorf("no *.json file in %s", folder)
	}
	run, err := judgeRun(warn, files, "", leaf)
	if err != nil {
		return view.Run{}, fmt.Errorf("%w in the %d *.json files of %s", err, len(files), folder)
	}
	return run, nil
}

// clusterRun judges a run's ConfigMaps.
func clusterRun(ctx context.Context, c *cli.Target, warn io.Writer, namespace, run, label string) (view.Run, error) {
	cluster, err := c.Client()
	if err != nil {
		return view.Run{}, err
	}
	var list corev1.ConfigMapList
	if err := cluster.List(ctx, &list, client.InNamespace(namespace),
		client.MatchingLabels{conditions.LabelPreflight: "report", conditions.LabelPreflightRun: run}); err != nil {
		return view.Run{}, fmt.Errorf("list the reports of run %s: %w", run, err)
	}
	var nodes corev1.NodeList
	if err := cluster.List(ctx, &nodes); err != nil {
		return view.Run{}, fmt.Errorf("list nodes: %w", err)
	}
	leaf := map[string]string{}
	for i := range nodes.Items {
		leaf[nodes.Items[i].Name] = nodes.Items[i].Labels[label]
	}
	var files []namedReport
	for i := range list.Items {
		cm := &list.Items[i]
		if first := list.Items[0].Namespace; cm.Namespace != first {
			return view.Run{}, fmt.Errorf("namespaces %s and %s have reports of run %s; choose with --reports-namespace", first, cm.Namespace, run)
		}
		if why, refused := strings.CutPrefix(cm.Annotations[conditions.AnnotationPreflightVerdict], reportconfigmap.RefusedPrefix); refused {
			cli.Fprintf(warn, "refused by the remediator: %s/%s: %s\n", cm.Namespace, cm.Name, why)
			continue
		}
		files = append(files, namedReport{cm.Namespace + "/" + cm.Name, []byte(cm.Data[reportconfigmap.Key]), cm.CreationTimestamp.Time})
	}
	judged, err := judgeRun(warn, files, run, leaf)
	if len(list.Items) > 0 {
		judged.Job = job(&list.Items[0])
	}
	if err != nil {
		return view.Run{}, fmt.Errorf("%w of run %s in %d ConfigMaps with label %s=%s", err, run, len(list.Items), conditions.LabelPreflightRun,
			run)
	}
	return judged, nil
}

// judgeRun reads reports, warns of those that are none and of ranks that report twice, and judges the rest.
func judgeRun(warn io.Writer, files []namedReport, run string, leaf map[string]string) (view.Run, error) {
	var reports []report.Report
	var workload string
	var written time.Time
	ranks := map[int]string{}
	for _, f := range files {
		r, err := report.Parse(f.data)
		if err == nil && ranks[r.Rank] != "" {
			err = fmt.Errorf("rank %d has already reported, in %s", r.Rank, ranks[r.Rank])
		}
		if err == nil && run != "" && r.RunID != "" && r.RunID != run {
			err = fmt.Errorf("it is of run %s, not %s", r.RunID, run)
		}
		if err != nil {
			cli.Fprintf(warn, "refused %s: %v\n", f.name, err)
			continue
		}
		if run == "" {
			run = r.RunID
		}
		// They are printed as text, as a page and as json.
		r.Node, r.Workload = cli.Text(r.Node), cli.Text(r.Workload)
		ranks[r.Rank] = f.name
		workload = cmp.Or(workload, r.Workload)
		if f.written.After(written) {
			written = f.written
		}
		reports = append(reports, r)
	}
	if len(reports) == 0 {
		return view.Run{}, errNoReport
	}
	return view.Run{
		Graph: verdict.NewGraph(reports), Verdict: verdict.Judge(run, reports,
			verdict.Options{Leaf: leaf}), Leaf: leaf, Job: workload, Date: written,
	}, nil
}

// job names the owner of a report: the controller of the pod that wrote it.
func job(cm *corev1.ConfigMap) string {
	for _, o := range cm.OwnerReferences {
		return cli.Text(fmt.Sprintf("%s %s/%s", o.Kind, cm.Namespace, o.Name))
	}
	return "in namespace " + cm.Namespace
}
